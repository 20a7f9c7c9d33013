"""Report: the tables of all branches as one HTML file, and each figure as a file of its own.

Needs: what the branches made, and the benchmark files beside it.
Makes: reports/<run>/index.html, reports/<run>/figures/.
"""

from ffkv.run.report.registry import FIGURES


rule write_settings:
    input:
        commit=lambda wildcards: commit("model")(wildcards)
        + commit("dataset")(wildcards),
    output:
        settings="results/{run}/settings.json",
    log:
        "results/{run}/logs/write_settings.log",
    benchmark:
        "results/{run}/benchmarks/write_settings.tsv"
    localrule: True  # One line in a file is not worth a job on a cluster.
    conda:
        "../../envs/ffkv.yaml"
    params:
        settings=lambda wildcards: json.dumps(SETTINGS[wildcards.run], sort_keys=True),
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
        trained=trained_checkpoint,
        model="results/{run}/model",
        corpus=collect(
            "results/{{run}}/corpus/{split}.h5", split=["train", "validation"]
        ),
        triggers="results/{run}/triggers.h5",
        key_tables=rules.keys_summarize.output,
        precision=branch(
            lambda wildcards: SETTINGS[wildcards.run]["model"]["dtype"] == "float32"
            or not SETTINGS[wildcards.run]["keys"]["precision"],
            otherwise=rules.keys_precision.output,
        ),
        patterns=every_layer_group("results/{run}/keys/patterns/{group}.parquet"),
        value_tables=rules.values_summarize.output,
        by_memory=every_layer_group("results/{run}/values/by_memory/{group}.parquet"),
        projections=every_layer_group("results/{run}/values/projections/{group}.h5"),
        control=control_report,
        composition_tables=rules.composition_summarize.output,
        refinement_tables=rules.refinement_summarize.output,
        intervention_tables=branch(
            lambda wildcards: SETTINGS[wildcards.run]["intervention"]["memories"] == 0,
            otherwise=rules.intervention_summarize.output,
        ),
        annotation_tables=branch(
            lambda wildcards: not annotation_files(
                SETTINGS[wildcards.run], wildcards.run
            ),
            otherwise=rules.annotate_agreement.output,
        ),
    output:
        page=report(
            "reports/{run}/index.html",
            caption="../report/page.rst",
            category="{run}",
            labels={"result": "the whole report", "shows": "all figures and cards"},
        ),
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
