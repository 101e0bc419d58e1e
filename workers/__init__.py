"""What searches, runs trials and delivers them. Importing it loads neither torch nor Ray."""
