package mcp

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"fleetd/internal/jsonscan"
)

const (
	maxContent  = 256 // items in one result
	maxMIMEType = 100
)

// A Content is one item of a tool's result: text, or data with its MIME type.
// Its JSON form is that of MCP.
type Content struct {
	Type     string `json:"type"`               // "text", "image" or "audio"
	Text     string `json:"text,omitempty"`     // of text; may have many lines
	Data     string `json:"data,omitempty"`     // of image and audio: base64, checked
	MIMEType string `json:"mimeType,omitempty"` // of image and audio, as claimed by the device
}

// A CallToolResult is the result of a tool call.
type CallToolResult struct {
	Content []Content `json:"content"`
	IsError bool      `json:"isError"` // always false from stock firmware; see Failed
}

// Failed reports whether the result is a failure. A result fails by isError, or
// by the single text "false": stock firmware always sends isError false, and
// its failed tools answer that text. A tool that answers a question may mean
// "no" by the same text, so the result stays unchanged, and the caller, who
// knows the tool, decides. "true" does not prove success: a failed firmware
// upgrade also answers it, late.
func (r *CallToolResult) Failed() bool {
	return r.IsError || len(r.Content) == 1 && r.Content[0] == Content{Type: "text", Text: "false"}
}

// AppendJSON appends the result as MCP's JSON.
func (r *CallToolResult) AppendJSON(dst []byte) []byte {
	size := 40
	for _, c := range r.Content {
		size += 40 + len(c.Text) + len(c.Data) + len(c.MIMEType)
	}
	dst = append(slices.Grow(dst, size), `{"content":[`...)
	for i, c := range r.Content {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = c.appendJSON(dst)
	}
	dst = append(dst, `],"isError":`...)
	if r.IsError {
		return append(dst, "true}"...)
	}
	return append(dst, "false}"...)
}

// MarshalJSON writes content as an array even when it is empty.
func (r CallToolResult) MarshalJSON() ([]byte, error) { return r.AppendJSON(nil), nil }

// MarshalJSON writes the members that MCP requires, even if they are empty.
func (c Content) MarshalJSON() ([]byte, error) { return c.appendJSON(nil), nil }

func (c Content) appendJSON(dst []byte) []byte {
	dst = appendString(append(dst, `{"type":`...), c.Type)
	if c.Type == "text" {
		dst = appendString(append(dst, `,"text":`...), c.Text)
		return append(dst, '}')
	}
	dst = appendString(append(dst, `,"data":`...), c.Data)
	dst = appendString(append(dst, `,"mimeType":`...), c.MIMEType)
	return append(dst, '}')
}

// ParseResult reads a result of tools/call: valid JSON from an MCP server other than a device.
// The error is a [*LimitError] if the result exceeds limit bytes or another limit.
func ParseResult(value []byte, limit int) (*CallToolResult, error) {
	if len(value) > limit {
		return nil, &LimitError{Limit: LimitBytes, Max: limit, Size: len(value)}
	}
	if err := jsonscan.Check(value, jsonscan.MaxDepth); err != nil {
		return nil, &LimitError{Limit: LimitLevels, Max: jsonscan.MaxDepth}
	}
	return parseResult(value)
}

// parseResult decodes the result of tools/call. A missing content counts as an
// empty one. The result retains nothing of value.
func parseResult(value []byte) (*CallToolResult, error) {
	r := new(struct { // one allocation, because every call parses a result
		CallToolResult
		limit *LimitError
		only  [1]Content
	})
	err := jsonscan.Members(value, func(key, value []byte) (err error) {
		switch string(key) {
		case "content":
			r.Content, err = parseContents(r.only[:0], value)
			if limit, ok := errors.AsType[*LimitError](err); ok {
				r.limit, err = limit, nil // the flag may follow
			}
		case "isError":
			r.IsError = string(value) == "true"
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: result: %w", ErrMalformed, err)
	}
	if r.limit != nil {
		r.limit.IsError = r.IsError
		return nil, r.limit
	}
	return &r.CallToolResult, nil
}

// parseContents decodes the items of value into room; more items than fit are
// allocated.
func parseContents(room []Content, value []byte) (contents []Content, err error) {
	if unlessNull(value) == nil {
		return nil, nil
	}
	contents = room[:0:cap(room)]
	err = jsonscan.Elements(value, func(value []byte) error {
		if len(contents) == maxContent {
			return &LimitError{Limit: LimitItems, Max: maxContent}
		}
		contents = append(contents, parseContent(value))
		return nil
	})
	return contents, err
}

// An item has the members of a content item that this package knows.
type item struct {
	kind, text, data, mimeType, image []byte
}

func parseItem(value []byte) (it item, err error) {
	err = jsonscan.Members(value, func(key, value []byte) error {
		switch string(key) {
		case "type":
			it.kind = value
		case "text":
			it.text = value
		case "data":
			it.data = value
		case "mimeType":
			it.mimeType = value
		case "image":
			it.image = value
		}
		return nil
	})
	return it, err
}

// parseContent normalises one item. An item that MCP 2024-11-05 clients would
// not understand becomes text that contains the item's JSON, so nothing is
// lost.
func parseContent(value []byte) Content {
	it, err := parseItem(value)
	switch {
	case err != nil:
	case string(it.kind) == `"text"` && jsonscan.IsString(it.text):
		return Content{Type: "text", Text: cleanText(it.text, unlimited)}
	case string(it.kind) == `"image"` && it.image != nil:
		return parseWrappedImage(it.image)
	case string(it.kind) == `"image"`:
		return it.binary("image")
	case string(it.kind) == `"audio"`:
		return it.binary("audio")
	}
	raw, _ := appendClean(nil, value)
	return Content{Type: "text", Text: string(raw)}
}

// parseWrappedImage reads the image of stock firmware: a standard item, as JSON
// in a string, under the key "image".
func parseWrappedImage(value []byte) Content {
	if jsonscan.IsString(value) {
		value = []byte(cleanText(value, unlimited))
	}
	it, err := parseItem(value)
	if err != nil {
		return unreadable("image", "not JSON")
	}
	return it.binary("image")
}

func (it item) binary(kind string) Content {
	if !jsonscan.IsString(it.data) || !jsonscan.IsString(it.mimeType) {
		return unreadable(kind, "no data or no MIME type")
	}
	c := Content{Type: kind, Data: cleanLine(it.data, unlimited), MIMEType: cleanLine(it.mimeType, maxMIMEType)}
	if !isBase64(c.Data) {
		return unreadable(kind, "data is not base64")
	}
	if !strings.HasPrefix(c.MIMEType, kind+"/") {
		return unreadable(kind, "MIME type is "+c.MIMEType)
	}
	return c
}

// unreadable replaces an item that would make MCP clients reject the whole
// result.
func unreadable(kind, why string) Content {
	return Content{Type: "text", Text: "[unreadable " + kind + " from the device: " + why + "]"}
}

func isBase64(s string) bool {
	var buf [768]byte
	const chunk = len(buf) / 3 * 4
	for len(s) > chunk {
		// A chunk inside of the text must be full; only the last may be padded.
		if n, err := base64.StdEncoding.Decode(buf[:], []byte(s[:chunk])); err != nil || n != len(buf) {
			return false
		}
		s = s[chunk:]
	}
	_, err := base64.StdEncoding.Decode(buf[:], []byte(s))
	return err == nil
}

var _ json.Marshaler = CallToolResult{}
