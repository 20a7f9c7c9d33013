"""Annotation: what people and machines said about keys, beside the tests.

Needs: annotations/<run>/, the tables of patterns, both splits.
Makes: results/<run>/annotation/: tables of what each annotator said, and of how far annotators agree. A run that nobody said
anything about does not use it.
"""


rule annotate_agreement:
    input:
        settings="results/{run}/settings.json",
        model="results/{run}/model",
        corpus=collect(
            "results/{{run}}/corpus/{split}.h5", split=["train", "validation"]
        ),
        patterns=runs.every("results/{run}/keys/patterns/{group}.parquet"),
        by_prefix=runs.every("results/{run}/keys/by_prefix/{group}.parquet"),
        annotations=runs.files("annotations"),
    output:
        patterns="results/{run}/annotation/patterns.parquet",
        by_prefix="results/{run}/annotation/by_prefix.parquet",
        annotators="results/{run}/annotation/annotators.csv",
        categories="results/{run}/annotation/figure_2_by_annotator.csv",
        agreement="results/{run}/annotation/agreement.csv",
        changes="results/{run}/annotation/related_changes.csv",
        machine_labels="results/{run}/annotation/machine_labels.parquet",
        machine_scores="results/{run}/annotation/machine_scores.parquet",
        scores_by_layer="results/{run}/annotation/machine_scores_by_layer.csv",
    log:
        "results/{run}/logs/annotate_agreement.log",
    benchmark:
        "results/{run}/benchmarks/annotate_agreement.tsv"
    priority: 11
    conda:
        "../../envs/ffkv.yaml"
    params:
        results=subpath(input.settings, parent=True),
        annotations=lambda wildcards: Path(
            runs.settings[wildcards.run].annotation.folder, wildcards.run
        ),
        folder=subpath(output.agreement, parent=True),
        content=runs.content("annotations"),
        code=code("annotate_agreement"),
    message:
        "Compare what people, machines and tests say about the keys of {wildcards.run}."
    shell:
        """
        ffkv annotate agreement \
            --results {params.results:q} \
            --annotations {params.annotations:q} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
