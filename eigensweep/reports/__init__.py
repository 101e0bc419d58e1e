"""Reports of reproductions: the paper beside what was measured, and what that says of its claims.

- `verdicts` decides claims, by arithmetic alone.
- `measurements` reads the numbers of a reproduction's trials and analyses.
- `report.make_report` puts them together; `pictures`, `markdown` and `page` show it.

`python -m eigensweep.reports FOLDER` does all that in a child process of the service.
"""
