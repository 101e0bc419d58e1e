"""What an experiment is: its spec, its search space, its trials, and the presets of the papers.

`spec.ExperimentSpec` is what a person posts and `spec.read_spec` reads it from YAML;
`trial.TrialConfig` is what is run; `preview.preview` says what a spec would cost;
`presets.load_preset` gives a published one; `problems.problems` turns what is wrong into a list
that a person can act on.
"""
