"""Report: the tables of all branches as one HTML file, and each figure as a file of its own.

Needs: what the branches made, and the benchmark files beside it.
Makes: reports/<run>/index.html, reports/<run>/verdicts.csv, reports/<run>/figures/.
"""

from ffkv.run.report.registry import FIGURES


rule write_settings:
    input:
        commit=runs.commit("model", "dataset"),
    output:
        settings="results/{run}/settings.json",
    log:
        "results/{run}/logs/write_settings.log",
    benchmark:
        "results/{run}/benchmarks/write_settings.tsv"
    priority: 12
    localrule: True  # One line in a file is not worth a job on a cluster.
    conda:
        "../../envs/ffkv.yaml"
    params:
        settings=runs.changed,
        defaults=DEFAULTS,
        commit=repeated("commit"),
    message:
        "Write the complete settings of {wildcards.run}."
    shell:
        """
        ffkv write-settings {params.commit:q} \
            --settings {params.settings:q} \
            --output {output.settings:q} \
            >{log:q} 2>&1
        """


rule report:
    input:
        settings="results/{run}/settings.json",
        trained=runs.trained_checkpoint,
        model="results/{run}/model",
        corpus=collect(
            "results/{{run}}/corpus/{split}.h5", split=["train", "validation"]
        ),
        triggers="results/{run}/triggers.h5",
        branches=runs.branches,
        control=runs.control,
        # One table of annotate_agreement stands for all.
        annotation_tables=branch(
            runs.found("annotations"),
            then="results/{run}/annotation/agreement.csv",
        ),
    output:
        page=report(
            "reports/{run}/index.html",
            caption="../report/page.rst",
            category="{run}",
            labels={"result": "the whole report", "shows": "all figures and cards"},
        ),
        verdicts="reports/{run}/verdicts.csv",
        figures=[
            report(
                f"reports/{{run}}/figures/{figure}.svg",
                caption="../report/figure.rst",
                category="{run}",
                subcategory=entry.section,
                labels={"result": figure.replace("_", " "), "shows": entry.title},
            )
            for figure, entry in FIGURES.items()
            if entry.every_run
        ],
    log:
        "results/{run}/logs/report.log",
    benchmark:
        "results/{run}/benchmarks/report.tsv"
    priority: 10
    conda:
        "../../envs/ffkv.yaml"
    params:
        results=subpath(input.settings, parent=True),
        code=code("report"),
    message:
        "Write the report of {wildcards.run}."
    shell:
        """
        ffkv report \
            --results {params.results:q} \
            --output {output.page:q} \
            >{log:q} 2>&1
        """
