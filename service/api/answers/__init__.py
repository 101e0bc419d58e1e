"""How answers are made: schemas, errors, pages of lists, writing as JSON."""
