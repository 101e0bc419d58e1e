"""Where trials may go: room, demand, fair shares, cordoned and draining nodes, corpora."""
