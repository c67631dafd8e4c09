// The TypeScript SDK: calls a tool with a key, and prints what it was told.
//
//     node typescript.cjs NODE_MODULES KEY TOOL URL
//     node typescript.cjs NODE_MODULES KEY TOOL COMMAND ARGS...

const { createRequire } = require("node:module");

const [modules, key, tool, target, ...args] = process.argv.slice(2);
const sdk = createRequire(`${modules}/from`);
const { Client } = sdk("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = sdk("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = sdk("@modelcontextprotocol/sdk/client/streamableHttp.js");
const LIMIT = { timeout: 8_000 };

async function main() {
  const client = new Client({ name: "typescript", version: "1" });
  const transport = target.startsWith("http://")
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args, env: process.env });
  await client.connect(transport, LIMIT);
  const tools = (await client.listTools({}, LIMIT)).tools.map((one) => one.name);
  const call = { name: tool, arguments: { what: "x" }, _meta: { "io.intentlog/step": key } };
  let found;
  try {
    const said = await client.callTool(call, undefined, LIMIT);
    found = { text: said.content[0].text, is_error: said.isError ?? false, meta: said._meta ?? null };
  } catch (error) {
    found = { raised: String(error) };
  }
  console.log(JSON.stringify({ tools, ...found }));
  await client.close();
}

main();
