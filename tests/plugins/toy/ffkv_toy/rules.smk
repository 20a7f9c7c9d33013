"""Lengths: how long the values of a layer are.

Needs: values.h5.
Makes: results/<run>/lengths/: a table of layers.
"""


rule lengths_summarize:
    input:
        values_file="results/{run}/values.h5",
    output:
        tables("lengths_summarize"),
    log:
        "results/{run}/logs/lengths_summarize.log",
    benchmark:
        "results/{run}/benchmarks/lengths_summarize.tsv"
    params:
        folder=subpath(output[0], parent=True),
        options=runs.options("lengths_summarize"),
        code=code("lengths_summarize"),
    message:
        "Measure the lengths of the values of {wildcards.run}."
    shell:
        """
        ffkv lengths summarize {params.options} \
            --values {input.values_file:q} \
            --output {params.folder:q} \
            >{log:q} 2>&1
        """
