"""The process of a trial: what Ray starts for it, and what trains there.

`trial_process` is the actor that Ray sees, and imports Ray. It has its trial trained by a process
that `fork_server` forks and `forked` calls, by an engine, or by itself; `runner` trains one trial
after another in one process. `engine_actor` is an engine's process, which Ray starts, too.
"""
