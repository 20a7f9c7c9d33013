"""Makes what is left to do of a run by the commands that Snakemake lists, in forks of one process: `python one_process.py DIRECTORY CONFIGFILE`.

The libraries are imported once, which takes most of the time of a small run. Whole runs through Snakemake have tests of their own.
"""

import multiprocessing
import os
import sys
from pathlib import Path

from ffkv.base.process.runtime import configure


def main(directory: str, configfile: str) -> None:
    """Runs all jobs, in an order in which their inputs are there."""
    configure(1)  # no thread pool starts before the forks
    from ffkv.workflow.jobs import ask_snakemake, import_libraries, read_jobs, run_command

    configfile = str(Path(configfile).absolute())
    os.chdir(directory)
    listed = ask_snakemake(Path(configfile), 1)  # one thread per job, as `support.snakemake` has it
    import_libraries()
    jobs = [job for job in read_jobs(listed) if not job.done]
    while ready := [job for job in jobs if all(Path(path).exists() for path in job.inputs)]:
        for job in ready:
            process = multiprocessing.get_context("fork").Process(target=run_command, args=[job.command])
            process.start()
            process.join()
            assert process.exitcode == 0, f"{job.rule} ended with {process.exitcode}: {job.command}"
        jobs = [job for job in jobs if job not in ready]
    assert not jobs, f"inputs are missing: {jobs}"


if __name__ == "__main__":
    main(*sys.argv[1:])
