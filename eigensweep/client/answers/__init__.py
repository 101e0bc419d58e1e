"""What a terminal and a notebook show of the service's answers: texts and tables."""
