"""What an experiment is: its spec, its search space, its trials, and the presets of the papers.

- `spec.ExperimentSpec` is what a person posts; `spec.read_spec` reads it from YAML.
- `checks.checks.check_spec` refuses a spec that could not run, before it is queued.
- `trial.TrialConfig` is one configuration, complete; its content hash names its results.
- `checks.preview.preview` says how many trials a spec has, of which size, and how long they take.
- `shipped.presets.load_preset` returns a published experiment.
- `shipped.reproductions.load_suite` returns what a table or figure of a paper runs and compares.
- `checks.problems.list_problems` turns errors into a list for the API and the terminal.
"""
