"""What each job of a run took, by the files that Snakemake's `benchmark:` left."""

import contextlib
import io
from pathlib import Path

import pandas as pd

from ffkv.base.files.stored import unreadable
from ffkv.base.lookup import find
from ffkv.branches.settings import EMBEDDED, Settings


def read_jobs(folder: Path, settings: Settings) -> pd.DataFrame:
    """Tells how much time and memory each job of a run took, one row per job.

    There are no rows if Snakemake wrote no benchmark files. Files of earlier runs with more shards or layer groups
    are left out, and so is the report's own file.

    Columns:
        rule: the rule.
        part: its split, shard or group of layers, behind the behaviour and "/" if it is of one; "" of a rule with one job.
        seconds: time of the job.
        memory: its highest peak, MiB.
        ended: when its file was written last, in seconds since 1970.

    Raises:
        UserError: a file cannot be read. One that is half-written is left out.
    """
    place, model = folder / "benchmarks", settings.model
    unused = {"report.tsv", *([] if model.checkpoint == EMBEDDED else ["train.tsv"])}
    unused |= set() if model.is_unpacked else {"unpack.tsv"}
    found = []
    for path in find(place, "**/*.tsv"):
        name = path.relative_to(place)
        parts = settings.shards if path.parent.name in ("triggers", "sampled_prefixes") else settings.layer_groups
        if int(path.stem) >= parts if path.stem.isdigit() else str(name) in unused:
            continue
        try:
            text = path.read_text(errors="replace")
        except OSError as error:
            raise unreadable(path, error) from error
        with contextlib.suppress(ValueError, KeyError):  # a power cut left the file half-written
            measured = pd.read_csv(io.StringIO(text), sep="\t").apply(pd.to_numeric, errors="coerce")
            rule, *part = name.with_suffix("").parts
            spent = measured["s"].sum(), measured["max_rss"].max()
            found.append((rule, "/".join(part), *spent, path.stat().st_mtime))
    return pd.DataFrame(found, columns=["rule", "part", "seconds", "memory", "ended"])
