"""Reading the templates of a platform together, across the references between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Properties = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One resource of one stack."""

    stack: str
    id: str
    body: Mapping[str, Any]

    @property
    def type(self) -> str:
        """CloudFormation's name of its type."""
        return str(self.body["Type"])

    @property
    def properties(self) -> Properties:
        """What the template sets."""
        properties: Properties = self.body.get("Properties", {})
        return properties

    @property
    def depends_on(self) -> list[str]:
        """Logical ids that it waits for, besides those that it refers to."""
        names = self.body.get("DependsOn", [])
        return [names] if isinstance(names, str) else list(names)


class Templates:
    """The templates of all stacks, by stack name."""

    def __init__(self, templates: Mapping[str, Mapping[str, Any]]) -> None:
        self._templates = templates

    def resources(self, type_: str | None = None) -> Iterator[Resource]:
        """Every resource, or those of one type."""
        for stack, template in self._templates.items():
            for id_, body in template.get("Resources", {}).items():
                if type_ is None or body["Type"] == type_:
                    yield Resource(stack=stack, id=id_, body=body)

    def get(self, stack: str, id_: str) -> Resource | None:
        """The resource of that logical id."""
        body = self._templates.get(stack, {}).get("Resources", {}).get(id_)
        return Resource(stack=stack, id=id_, body=body) if body is not None else None

    def output(self, stack: str, name: str) -> Any:
        """The value of an output, or None where there is none."""
        return self._templates.get(stack, {}).get("Outputs", {}).get(name, {}).get("Value")

    def parameters(self, stack: str) -> frozenset[str]:
        """Names that a Ref may mean besides resources."""
        return frozenset(self._templates.get(stack, {}).get("Parameters", {}))

    def target(self, stack: str, value: Any) -> Resource | None:
        """The resource that a reference in `stack` leads to, through the outputs of other stacks."""
        match value:
            case {"Ref": str(id_)} | {"Fn::GetAtt": [str(id_), *_]}:
                return self.get(stack, id_)
            case {"Fn::GetStackOutput": {"StackName": str(other), "OutputName": str(name)}}:
                return self.target(other, self.output(other, name))
        return None


def unknown_properties(properties: Properties, known: frozenset[str], *, where: str = "") -> Iterator[str]:
    """A sentence for each property that these rules have not been taught, most likely misspelt."""
    for name in sorted(properties.keys() - known):
        yield f"{where}{name} is no property that the rules know; correct it, or teach it to stacks/rules"
