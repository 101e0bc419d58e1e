"""What is done with a store beside training: thinning, backups, corpora, markers of drivers."""
