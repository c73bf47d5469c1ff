package fleet

import "encoding/json"

// resultText is the first text of a CallToolResult, "" if it has none.
func resultText(result json.RawMessage) string {
	var r struct {
		Content []struct{ Type, Text string }
	}
	if json.Unmarshal(result, &r) != nil {
		return ""
	}
	for _, c := range r.Content {
		if c.Type == "text" {
			return c.Text
		}
	}
	return ""
}
