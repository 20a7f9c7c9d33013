"""Comparison: several runs over each other.

Needs: what the reports of these runs need.
Makes: results/comparisons/<comparison>/tables/, reports/comparisons/<comparison>/index.html.
"""


rule comparison_measure:
    input:
        reports=runs.reports_of_comparison,
        settings=lambda wildcards: collect(
            "results/{run}/settings.json",
            run=runs.comparisons[wildcards.comparison]["runs"],
        ),
    output:
        tables=directory("results/comparisons/{comparison}/tables"),
    log:
        "results/comparisons/{comparison}/logs/comparison_measure.log",
    benchmark:
        "results/comparisons/{comparison}/benchmarks/comparison_measure.tsv"
    priority: 2
    conda:
        "../../envs/ffkv.yaml"
    threads: 4
    params:
        runs=lambda wildcards, input: [
            str(Path(file).parent) for file in input.settings
        ],
        options=runs.comparison_options,
        code=code("comparison_measure"),
    message:
        "Compare the runs of {wildcards.comparison}."
    shell:
        """
        ffkv comparison measure {params.runs:q} {params.options} \
            --name {wildcards.comparison} \
            --threads {threads} \
            --output {output.tables:q} \
            >{log:q} 2>&1
        """


rule comparison_report:
    input:
        tables="results/comparisons/{comparison}/tables",
    output:
        page=report(
            "reports/comparisons/{comparison}/index.html",
            caption="../report/comparison.rst",
            category="comparisons",
            labels={"result": "{comparison}", "shows": "runs over each other"},
        ),
    log:
        "results/comparisons/{comparison}/logs/comparison_report.log",
    benchmark:
        "results/comparisons/{comparison}/benchmarks/comparison_report.tsv"
    priority: 1
    conda:
        "../../envs/ffkv.yaml"
    params:
        code=code("comparison_report"),
    message:
        "Write the report of the comparison {wildcards.comparison}."
    shell:
        """
        ffkv comparison report {input.tables:q} \
            --output {output.page:q} \
            >{log:q} 2>&1
        """
