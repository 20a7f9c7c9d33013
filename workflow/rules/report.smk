"""Report: the tables of all branches as one HTML file, each figure also by itself.

Needs: what the four branches made, and the benchmark files beside it.
Makes: reports/<run>/index.html, reports/<run>/figures/.
"""

from ffkv.report.registry import FIGURES


rule write_settings:
    output:
        settings="results/{run}/settings.json",
    log:
        "results/{run}/logs/write_settings.log",
    benchmark:
        "results/{run}/benchmarks/write_settings.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 1
    params:
        settings=lambda wildcards: json.dumps(SETTINGS[wildcards.run], sort_keys=True),
        folder=subpath(output.settings, parent=True),
    shell:
        # Named as `ffkv.files.atomic` names what is not complete, so that `ffkv recover` knows it.
        """
        exec 2>{log:q}
        unfinished={params.folder:q}/.settings.json.${{HOSTNAME%%.*}}.$$.partial
        printf '%s\\n' {params.settings:q} >"$unfinished"
        mv "$unfinished" {output.settings:q}
        """


rule report:
    input:
        settings="results/{run}/settings.json",
        checkpoint=tracked(checkpoint_files),
        model="results/{run}/model",
        corpus=collect(
            "results/{{run}}/corpus/{split}.h5", split=["train", "validation"]
        ),
        triggers="results/{run}/triggers.h5",
        key_tables=rules.keys.output,
        precision=branch(
            lambda wildcards: SETTINGS[wildcards.run]["model"]["dtype"] == "float32",
            otherwise=rules.key_precision.output,
        ),
        patterns=parts(
            "results/{run}/keys/patterns/{group}.parquet", "group", "layer_groups"
        ),
        value_tables=rules.values.output,
        memories=parts(
            "results/{run}/values/memories/{group}.parquet", "group", "layer_groups"
        ),
        projections=parts(
            "results/{run}/values/projections/{group}.h5", "group", "layer_groups"
        ),
        composition=rules.composition.output,
        refinement=rules.refinement.output,
        code=code("report"),
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
                labels={
                    "result": figure.replace("_", " "),
                    "shows": entry.title,
                },
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
    threads: 1
    params:
        results=subpath(input.settings, parent=True),
    shell:
        """
        ffkv report \
            --results {params.results:q} \
            --output {output.page:q} \
            >{log:q} 2>&1
        """
