"""`ffkv settings`."""

import click


@click.command()
@click.option("--check", "file", type=click.Path(), help="Only check this settings file: say what is wrong, and where.")
def settings(file: str | None) -> None:
    """Write the default settings file, its JSON schema and the reference page of the settings."""
    from ffkv.files.atomic import atomic
    from ffkv.settings.reference import DEFAULT, PAGE, SCHEMA, default, page, schema
    from ffkv.settings.runs import resolve
    from ffkv.settings.yaml_file import read_settings

    if file is not None:
        click.echo(f"{file} is valid. Its runs: {', '.join(resolve(read_settings(file)))}.")
        return
    for path, text in ((DEFAULT, default()), (SCHEMA, schema()), (PAGE, page())):
        with atomic(path, summed=False) as temporary:
            temporary.write_text(text, encoding="utf-8")
        click.echo(path)
