package mcp

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"

	"fleetd/internal/jsonscan"
)

const (
	maxToolName    = 128
	maxDescription = 4096
	maxSchema      = 16 << 10
	maxSchemaDepth = 16
	maxAudience    = 4
	maxCursor      = 1024
)

// anyObject replaces an unusable input schema.
const anyObject = `{"type":"object"}`

// A Tool is a function that a device offers. Its texts come from the firmware.
type Tool struct {
	Name        string // at most 128 bytes; always one that CallTool accepts
	Description string // at most 4 KiB; may have many lines

	// InputSchema is a JSON object of at most 16 KiB and 16 levels that jsonb can
	// store, with its members in the device's order. If the device sends anything
	// else, InputSchema is {"type":"object"}. It need not be a valid JSON Schema.
	InputSchema json.RawMessage

	Audience []string // annotations.audience; nil on stock tools meant for models too
}

// UserOnly reports whether the device offers the tool to people and not to
// models. Devices run it for any client: the caller has to enforce it.
func (t Tool) UserOnly() bool {
	return slices.Contains(t.Audience, "user") && !slices.Contains(t.Audience, "assistant")
}

// A page is one answer to tools/list.
type page struct {
	tools   []Tool
	next    string // cursor of the next page; empty on the last
	skipped int    // tools that cannot be called
}

func parsePage(result []byte, log *slog.Logger) (p page, err error) {
	err = jsonscan.Members(result, func(key, value []byte) error {
		switch string(key) {
		case "tools":
			return jsonscan.Elements(value, func(value []byte) error {
				p.add(value, log)
				return nil
			})
		case "nextCursor":
			return p.setNext(value)
		}
		return nil
	})
	if err != nil {
		return p, fmt.Errorf("%w: tools: %w", ErrMalformed, err)
	}
	return p, nil
}

// add appends the tool if it can be called. A call under a corrected name would
// reach nothing, or another tool.
func (p *page) add(value []byte, log *slog.Logger) {
	t, err := parseTool(value)
	if err != nil {
		if p.skipped++; p.skipped == 1 { // a page can hold thousands
			log.Warn("tool left out", "tool", t.Name, "err", err)
		}
		return
	}
	p.tools = append(p.tools, t)
}

// setNext reads the cursor of the next page. An absent cursor (stock), null and
// "" mark the last page.
func (p *page) setNext(value []byte) error {
	switch {
	case unlessNull(value) == nil:
		p.next = ""
	case !jsonscan.IsString(value) || len(value) > maxCursor:
		return fmt.Errorf("nextCursor is not a string of at most %d bytes", maxCursor)
	default:
		p.next = cleanText(value, maxCursor)
	}
	return nil
}

// ParseTool reads a tool of a list: valid JSON from an MCP server other than a device.
func ParseTool(value []byte) (Tool, error) { return parseTool(value) }

func parseTool(value []byte) (Tool, error) {
	t := Tool{InputSchema: json.RawMessage(anyObject)}
	var name []byte
	err := jsonscan.Members(value, func(key, value []byte) error {
		switch string(key) {
		case "name":
			name = value
		case "description":
			if jsonscan.IsString(value) {
				t.Description = cleanText(value, maxDescription)
			}
		case "inputSchema":
			t.InputSchema = parseSchema(value)
		case "annotations":
			t.Audience = parseAudience(value)
		}
		return nil
	})
	if err != nil {
		return t, err
	}
	return t, t.setName(name)
}

func (t *Tool) setName(lit []byte) error {
	if !jsonscan.IsString(lit) {
		return fmt.Errorf("name is not a string")
	}
	t.Name = cleanLine(lit, maxToolName)
	return checkNameLiteral(lit)
}

func parseSchema(value []byte) json.RawMessage {
	if value[0] != '{' || len(value) > maxSchema || jsonscan.Check(value, maxSchemaDepth) != nil {
		return json.RawMessage(anyObject)
	}
	// Cleaning can lengthen: an invalid byte becomes three.
	schema, ok := appendClean(make([]byte, 0, len(value)), value)
	if !ok || len(schema) > maxSchema {
		return json.RawMessage(anyObject)
	}
	return schema
}

func parseAudience(annotations []byte) (audience []string) {
	_ = jsonscan.Members(annotations, func(key, value []byte) error {
		if string(key) != "audience" {
			return nil
		}
		return jsonscan.Elements(value, func(value []byte) error {
			if jsonscan.IsString(value) && len(audience) < maxAudience {
				audience = append(audience, cleanLine(value, maxType))
			}
			return nil
		})
	}) // other forms do not name an audience
	return audience
}
