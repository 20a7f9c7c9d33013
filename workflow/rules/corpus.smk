"""Corpus: documents to sentences of token ids.

Needs: a data set or files; the model's tokenizer, BOS token and context.
Makes: results/<run>/corpus/train.h5 and validation.h5. A control copies those of its run, a third of the train split.
"""


ruleorder: copy_corpus > corpus  # Both make results/<run>/corpus/, of different runs.


rule corpus:
    input:
        files=runs.files("corpus"),
        commit=runs.commit("dataset"),
        model="results/{run}/model",
    output:
        corpus="results/{run}/corpus/{split}.h5",
    log:
        "results/{run}/logs/corpus/{split}.log",
    benchmark:
        "results/{run}/benchmarks/corpus/{split}.tsv"
    priority: 273
    conda:
        "../../envs/ffkv.yaml"
    threads: runs.setting("corpus_processes")
    params:
        content=runs.content("corpus"),
        options=runs.options("corpus"),
        commit=repeated("commit"),
        code=code("corpus"),
    message:
        "Turn the {wildcards.split} documents of {wildcards.run} into sentences of token ids. Progress is in {log}."
    shell:
        """
        ffkv corpus {params.options} {params.commit:q} \
            --model {input.model:q} \
            --split {wildcards.split} \
            --corpus-processes {threads} \
            --output {output.corpus:q} \
            >{log:q} 2>&1
        """


rule copy_corpus:
    input:
        corpus=runs.copied_corpus,
    output:
        corpus="results/{run}/corpus/{split}.h5",
    log:
        "results/{run}/logs/corpus/{split}.log",
    benchmark:
        "results/{run}/benchmarks/corpus/{split}.tsv"
    wildcard_constraints:
        run=runs.that("copy"),
    priority: 273
    conda:
        "../../envs/ffkv.yaml"
    params:
        code=code("copy_corpus"),
    message:
        "Copy the {wildcards.split} text of {wildcards.run} from its run."
    shell:
        """
        ffkv copy-corpus \
            --corpus {input.corpus:q} \
            --output {output.corpus:q} \
            >{log:q} 2>&1
        """
