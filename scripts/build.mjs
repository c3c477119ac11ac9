#!/usr/bin/env node
// Compiles lib/ to dist/ as tsc does, but for one thing: types that are inferred from schemas are written out in the
// declarations, each field with its comment. An editor would have nothing to show for a recipe's field otherwise.
//   node scripts/build.mjs [--out DIRECTORY]
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import ts from "typescript";

const root = fileURLToPath(new URL("..", import.meta.url));
const { out } = parseArgs({ options: { out: { type: "string" } } }).values;

const host = { ...ts.sys, onUnRecoverableConfigFileDiagnostic: (fault) => report([fault]) };
const config = ts.getParsedCommandLineOfConfigFile(`${root}tsconfig.json`, out && { outDir: out }, host);
const program = ts.createProgram(config.fileNames, config.options);
const checker = program.getTypeChecker();

const { diagnostics } = program.emit(undefined, undefined, undefined, false, {
  afterDeclarations: [documented],
});
report([...ts.getPreEmitDiagnostics(program), ...diagnostics]);

function report(faults) {
  if (faults.length === 0) return;
  const format = {
    getCanonicalFileName: (name) => name,
    getCurrentDirectory: () => root,
    getNewLine: () => "\n",
  };
  process.stderr.write(ts.formatDiagnosticsWithColorAndContext(faults, format));
  process.exit(1);
}

/** A transformer of declarations: what a schema infers is written out, each field with the comment of the schema's. */
function documented(context) {
  const visit = (node) => {
    const inferred =
      ts.isTypeAliasDeclaration(node) && /^z\.(input|infer)</.test(ts.getOriginalNode(node).type.getText());
    return inferred ? writtenOut(node, context) : ts.visitEachChild(node, visit, context);
  };
  return (file) => ts.visitEachChild(file, visit, context);
}

function writtenOut(alias, { factory }) {
  const original = ts.getOriginalNode(alias);
  const type = checker.getTypeAtLocation(original.name);
  const { NoTruncation, InTypeAlias, MultilineObjectLiterals } = ts.NodeBuilderFlags;
  const written = checker.typeToTypeNode(
    type,
    original,
    NoTruncation | InTypeAlias | MultilineObjectLiterals,
  );
  comment(written, type);
  return factory.updateTypeAliasDeclaration(
    alias,
    alias.modifiers,
    alias.name,
    alias.typeParameters,
    written,
  );
}

/** Goes through a written type and the type it stands for side by side. */
function comment(written, type) {
  if (ts.isUnionTypeNode(written)) {
    // In the same order, but for what is written by its name.
    const parts = [...type.types];
    for (const node of written.types.filter(ts.isTypeLiteralNode)) {
      const names = String(propertiesOf(node).map(({ name }) => name.text));
      const at = parts.findIndex(
        (part) => String(checker.getPropertiesOfType(part).map(({ name }) => name)) === names,
      );
      comment(node, ...parts.splice(at, 1));
    }
  }
  if (!ts.isTypeLiteralNode(written)) return;
  for (const property of propertiesOf(written)) {
    const symbol = checker.getNonNullableType(type).getProperty(property.name.text);
    const text = docstring(symbol);
    if (text !== undefined)
      ts.addSyntheticLeadingComment(property, ts.SyntaxKind.MultiLineCommentTrivia, text, true);
    comment(property.type, checker.getTypeOfSymbol(symbol));
  }
}

function propertiesOf(literal) {
  return literal.members.filter(ts.isPropertySignature);
}

/** What stands between the marks of the comment before a property, or undefined. */
function docstring(symbol) {
  // zod's mapped types leave a property without its declaration; the one that it was made from has it.
  let origin = symbol;
  while (origin.declarations === undefined && origin.links?.syntheticOrigin)
    origin = origin.links.syntheticOrigin;
  const [declaration] = origin.declarations ?? [];
  const [doc] = declaration === undefined ? [] : ts.getJSDocCommentsAndTags(declaration).filter(ts.isJSDoc);
  return doc?.getText().slice(2, -2).replace(/\n\s*/g, "\n ");
}
