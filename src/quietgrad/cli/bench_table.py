"""Words in rows and columns, for the terminal and for Markdown."""

from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

Line = tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """Words in rows and columns.

    Attributes:
        title: what they say.
        header: one word for every column.
        sections: the rows, those that belong together in one.
        heads: so many first columns are the same in a whole section.
        left: so many first columns are words, not numbers.
    """

    title: str
    header: Line
    sections: tuple[tuple[Line, ...], ...]
    heads: int
    left: int

    def as_table(self) -> Table:
        """For the terminal: what is the same in a section stands above it."""
        table = Table(title=self.title, title_justify="left", box=SIMPLE_HEAD)
        for place, word in enumerate(self.header[self.heads :], self.heads):
            is_first, is_word = place == self.heads, place < self.left
            table.add_column(
                word,
                justify="left" if is_word else "right",
                overflow="fold",
                no_wrap=not is_first,
            )
        for section in self.sections:
            if self.heads:
                table.add_row(self._heading(section[0]), style="bold")
            for line in section:
                table.add_row(*line[self.heads :])
            table.add_section()
        return table

    def _heading(self, line: Line) -> str:
        """Such as `mlp, batch 256`."""
        first, *others = zip(self.header[: self.heads], line, strict=False)
        return ", ".join([first[1], *(f"{name} {word}" for name, word in others)])

    def as_markdown(self) -> str:
        """For a file: every line says all."""
        rule = tuple("---" if place < self.left else "---:" for place in range(len(self.header)))
        lines = [self.header, rule, *(line for section in self.sections for line in section)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"**{self.title}**\n\n{table}\n"
