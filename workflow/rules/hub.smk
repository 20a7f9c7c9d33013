"""Hub: which commit of each repository a run reads, asked once.

Needs: the hub, or its cache.
Makes: results/<run>/commits/model.json and dataset.json, for a model and a data set that come from the hub. All later jobs read
these commits. A branch that moves changes nothing in a run, until `snakemake --forcerun resolve_commit` asks again.
"""


rule resolve_commit:
    output:
        commit="results/{run}/commits/{kind}.json",
    log:
        "results/{run}/logs/commits/{kind}.log",
    benchmark:
        "results/{run}/benchmarks/commits/{kind}.tsv"
    priority: 400  # before anything else: runs of one command read the same commit, also if somebody pushes soon after
    localrule: True  # Nodes of a cluster often have no way to the hub.
    conda:
        "../../envs/ffkv.yaml"
    params:
        repository=lambda wildcards: runs.hub[wildcards.run][wildcards.kind],
    message:
        "Ask the hub which commit of the {wildcards.kind} {wildcards.run} reads."
    shell:
        """
        ffkv resolve-commit {params.repository} \
            --kind {wildcards.kind} \
            --output {output.commit:q} \
            >{log:q} 2>&1
        """
