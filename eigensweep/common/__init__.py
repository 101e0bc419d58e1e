"""What every room may use. Each file stands nearly alone, and knows no room."""
