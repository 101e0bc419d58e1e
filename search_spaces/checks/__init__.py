"""What is refused, warned of and foreseen of a spec, before anything runs.

`checks` refuses what could only fail on a worker, and `mistakes` tells all mistakes at once. What a
spec will do is said by `preview`, `spec_warnings`, `search_words` and `race_words`, from guesses of
`memory`. `extension` and `warm_start` say which specs and trials go together.
"""
