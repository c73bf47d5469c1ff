// Package plugins tests the examples of plug-ins in its folders. A plug-in is an
// MCP server that fleetd starts, and with which it talks over standard input and
// output. The plug-ins share no code, so each of them can be copied alone.
//
//	weather  tools
//	review   prompts, with completion of their arguments
//	quotes   resources, with subscriptions
//	job      progress notifications, log messages and cancellation
//	dice     tools, in TypeScript
//
// The files in manifests describe the plug-ins to fleetd. They expect the programs
// where this command writes them:
//
//	go build -o bin/plugins/ ./examples/plugins/...
package plugins
