"""What trains trials, alone or in lanes: PyTorch and the store, and no Ray.

Inside out: `training` trains one seed with `optimizers`, `evaluation` and `selection`;
`attempt` trains all seeds of a trial from rung to rung and commits; `lanes` trains many trials side
by side on one device. `notebook` trains one configuration where it is called.
"""
