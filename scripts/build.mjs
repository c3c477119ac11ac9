#!/usr/bin/env node
// Compiles lib/ to dist/ with tsc, copies the report's script, bundles the dashboard's page, and
// expands types that are inferred from schemas in the declarations, each field with its comment.
// Editors would otherwise show no help for recipe fields.
import { cpSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";
import { bundleDash } from "./bundle-dash.mjs";

const root = fileURLToPath(new URL("..", import.meta.url));

const host = { ...ts.sys, onUnRecoverableConfigFileDiagnostic: (fault) => report([fault]) };
const config = ts.getParsedCommandLineOfConfigFile(`${root}tsconfig.json`, undefined, host);
const program = ts.createProgram(config.fileNames, config.options);
const checker = program.getTypeChecker();

const { diagnostics } = program.emit(undefined, undefined, undefined, false, {
  afterDeclarations: [documented],
});
report([...ts.getPreEmitDiagnostics(program), ...diagnostics]);
const script = "report/browser/episodes.js";
cpSync(join(root, "lib", script), join(config.options.outDir, script));
await bundleDash(join(config.options.outDir, "dash", "assets"));

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

/**
 * A transformer of declarations: expands inferred types, with the comments of the schema's fields.
 */
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

/** Traverses a type node and the type that it denotes in parallel. */
function comment(written, type) {
  if (ts.isUnionTypeNode(written)) {
    // Both are in the same order, except for types written by name.
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

/** The text of the comment before a property, or undefined. */
function docstring(symbol) {
  // zod's mapped types have no declaration of a property; use the property that it was derived
  // from.
  let origin = symbol;
  while (origin.declarations === undefined && origin.links?.syntheticOrigin)
    origin = origin.links.syntheticOrigin;
  const [declaration] = origin.declarations ?? [];
  const [doc] = declaration === undefined ? [] : ts.getJSDocCommentsAndTags(declaration).filter(ts.isJSDoc);
  return doc?.getText().slice(2, -2).replace(/\n\s*/g, "\n ");
}
