"""Refinement: how predictions are refined from layer to layer (figures 9 to 11).

Needs: prefixes.h5, the head, the validation split.
Makes: results/<run>/refinement/: a table of prefixes by group of layers, and the summaries of the figures.
"""


rule measure_refinement:
    input:
        model="results/{run}/model",
        prefixes="results/{run}/prefixes.h5",
        code=code("refinement"),
    output:
        prefixes="results/{run}/refinement/prefixes/{group}.parquet",
    log:
        "results/{run}/logs/measure_refinement/{group}.log",
    benchmark:
        "results/{run}/benchmarks/measure_refinement/{group}.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    params:
        device=setting("model/device"),
        groups=setting("layer_groups"),
    shell:
        """
        ffkv refinement measure \
            --model {input.model:q} \
            --prefixes {input.prefixes:q} \
            --device {params.device} \
            --layer-group {wildcards.group} \
            --layer-groups {params.groups} \
            --threads {threads} \
            --output {output.prefixes:q} \
            >{log:q} 2>&1
        """


rule refinement:
    input:
        tables=parts(
            "results/{run}/refinement/prefixes/{group}.parquet",
            "group",
            "layer_groups",
        ),
        model="results/{run}/model",
        prefixes="results/{run}/prefixes.h5",
        corpus="results/{run}/corpus/validation.h5",
        code=code("refinement", "intervals.py"),
    output:
        residual="results/{run}/refinement/residual.csv",
        probability="results/{run}/refinement/probability.csv",
        breakdown="results/{run}/refinement/breakdown.csv",
        changes="results/{run}/refinement/changes.csv",
    log:
        "results/{run}/logs/refinement.log",
    benchmark:
        "results/{run}/benchmarks/refinement.tsv"
    conda:
        "../../envs/ffkv.yaml"
    threads: 1
    params:
        folder=subpath(output.residual, parent=True),
        changes=setting("refinement/changes"),
        seed=setting("seed"),
    shell:
        """
        ffkv refinement summarize \
            {input.tables:q} \
            --model {input.model:q} \
            --prefixes {input.prefixes:q} \
            --corpus {input.corpus:q} \
            --changes {params.changes} \
            --seed {params.seed} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
