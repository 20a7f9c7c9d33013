"""What all wings stand on: settings, files, processes, the hub, statistics. It knows no model.

What stands higher imports what stands lower, and never the other way round:

    `hub`                            repositories of the Hugging Face hub
    `options`                        the command line from the settings
    `steps`                          one description per step of the workflow, and how its jobs work
    `dependencies`                   which code the numbers of a step depend on
    `process`                        how a step runs
    `settings`                       what can be set
    `files`                          whole files on disk
    `fault`                          whose fault a failure is: a disk, the memory, or nobody's
    `doors`        `lookup`          installed packages | files of anybody, looked at
    `signals`      `errors`          how a step ends in good order | the one class of errors for users
    `terminal`     `version`         text that can send a terminal no command | the release and the commit

Beside them stand a few that import at most `lookup`, `errors` and each other:

- `batching`: rows of tokens into batches; `streams`: random numbers by purpose.
- `intervals`, `multiple_tests`: statistics that several branches share.
- `characters`: text below a character. `public`: the public names of a package.
"""
