package ui

import (
	"bytes"
	"encoding/json"
)

// An MCPClient is the configuration of one MCP client for this server. It contains the token.
type MCPClient struct {
	Key  string // of its texts: "claude_code", "claude_desktop", "cursor", "vscode"
	Name string
	Text string // to paste
	Menu string // of the client, in English, that opens its file; "" if its texts name the file
}

// MCPClients returns the configurations for a token of a model. url is the public address of this
// server. docs/mcp.md has the same configurations.
func MCPClients(url, token string) []MCPClient {
	type object = map[string]any
	address, headers := url+"/mcp", object{"Authorization": "Bearer " + token}
	return []MCPClient{
		// Neither an address nor a token has a character that a shell reads between double quotes, which
		// are quotes in every shell, also on Windows.
		{"claude_code", "Claude Code", `claude mcp add --transport http fleetd "` + address +
			`" --header "Authorization: Bearer ` + token + `"`, ""},
		{"claude_desktop", "Claude Desktop", pasted(object{"mcpServers": object{"fleetd": object{
			"command": "/usr/local/bin/fleetd", "args": []string{"mcp"},
			"env": object{"FLEETD_URL": url, "FLEETD_TOKEN": token}}}}), "Settings > Developer > Edit Config"},
		{"cursor", "Cursor", pasted(object{"mcpServers": object{"fleetd": object{"url": address, "headers": headers}}}), ""},
		{"vscode", "VS Code", pasted(object{"servers": object{"fleetd": object{"type": "http", "url": address,
			"headers": headers}}}), "MCP: Open User Configuration"},
	}
}

// pasted returns v as JSON for a file.
func pasted(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // maps of text always encode
	return string(bytes.TrimSpace(b.Bytes()))
}
