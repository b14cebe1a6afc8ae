// Where the nodes of the picture stand: one column a kind, rows so that edges are short.

export const NODE = { width: 168, height: 38, gap: 12, between: 52 };
const COLUMNS = [["preset"], ["group", "alias", "pattern"], ["model"], ["endpoint"], ["provider"], ["domain"]];

/** The columns that have nodes, in order; each a list of nodes with x and y, and the size of it all. */
export function laidOut(nodes, edges) {
  const columns = COLUMNS.map((kinds) => nodes.filter((node) => kinds.includes(node.kind))).filter((column) => column.length > 0);
  const at = new Map();
  // Endpoints are the longest column as a rule: they stand in the order of their models, all others in their middle.
  const longest = columns.reduce((best, column, i) => (column.length > columns[best].length ? i : best), 0);
  stack(columns[longest] ?? [], () => 0, at);
  for (let i = longest - 1; i >= 0; i--) stack(columns[i], middle(edges, at, "source", "target"), at);
  for (let i = longest + 1; i < columns.length; i++) stack(columns[i], middle(edges, at, "target", "source"), at);
  columns.forEach((column, i) => column.forEach((node) => at.set(node.id, { ...at.get(node.id), x: i * (NODE.width + NODE.between) })));
  const height = Math.max(0, ...[...at.values()].map(({ y }) => y + NODE.height));
  return { at, width: columns.length * (NODE.width + NODE.between) - NODE.between, height };
}

/** Put a column's nodes under each other, each as near to where it wants to be as those before it let it. */
function stack(column, wanted, at) {
  const rows = column.map((node, i) => ({ node, y: wanted(node), i })).sort((a, b) => (a.y === b.y ? a.i - b.i : a.y - b.y));
  let free = 0;
  for (const { node, y } of rows) {
    const top = Math.max(free, Number.isFinite(y) ? y : 0);
    at.set(node.id, { y: top });
    free = top + NODE.height + NODE.gap;
  }
}

/** The mean height of those that a node is joined to and that stand already; infinite, so last, where there is none. */
function middle(edges, at, own, other) {
  const heights = new Map();
  for (const edge of edges) {
    const place = edge.is_fallback || edge.is_shadow ? undefined : at.get(edge[other]);
    if (place) heights.set(edge[own], [...(heights.get(edge[own]) ?? []), place.y]);
  }
  return (node) => {
    const found = heights.get(node.id) ?? [];
    return found.length > 0 ? found.reduce((sum, y) => sum + y, 0) / found.length : Infinity;
  };
}
