// Dice is a plug-in in TypeScript with two tools, roll_dice and flip_coin.
//
// It shows a server of the official SDK with schemas in Zod for the arguments and
// the results. The SDK checks both, and fills in the defaults of the arguments.
// Standard output carries the protocol: write what a person should read to
// standard error, with console.error.
//
// Build it with "npm ci && npm run build".
import { randomInt } from 'node:crypto';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import * as z from 'zod';

const server = new McpServer({ name: 'dice', version: '1.0.0' });

// Rolling dice changes nothing, and reaches nothing outside this program.
const annotations = { readOnlyHint: true, openWorldHint: false };

// A result carries the output as JSON text too, for clients that do not read structured content.
function result(output: Record<string, unknown>) {
  return { structuredContent: output, content: [{ type: 'text' as const, text: JSON.stringify(output) }] };
}

server.registerTool('roll_dice', {
  title: 'Roll dice',
  description: 'Rolls dice, and returns each number and the total.',
  inputSchema: {
    sides: z.number().int().min(2).max(1000).default(6).describe('the number of sides of each die'),
    count: z.number().int().min(1).max(100).default(1).describe('the number of dice'),
  },
  outputSchema: {
    rolls: z.array(z.number().int()).describe('the number that each die shows'),
    total: z.number().int(),
  },
  annotations,
}, ({ sides, count }) => {
  const rolls = Array.from({ length: count }, () => randomInt(1, sides + 1));
  return result({ rolls, total: rolls.reduce((sum, roll) => sum + roll, 0) });
});

server.registerTool('flip_coin', {
  title: 'Flip a coin',
  description: 'Flips a coin.',
  outputSchema: { side: z.enum(['heads', 'tails']) },
  annotations,
}, () => result({ side: randomInt(2) === 0 ? 'heads' : 'tails' }));

await server.connect(new StdioServerTransport());
