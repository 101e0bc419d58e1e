"""Pages for browsers, made of the API's answers. Runs in the service's process.

`routes` answers, `templates` are the pages' texts, `static` holds their one stylesheet and scripts.
"""
