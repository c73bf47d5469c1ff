package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"fleetd/internal/jsonscan"
)

// A message is a JSON-RPC message of a device, split into the texts of its
// members. The parts alias the parsed bytes. An absent member is nil, and so is
// null, except in result and params.
type message struct {
	id, method, params, result, err []byte
}

func parseMessage(raw []byte) (m message, err error) {
	err = jsonscan.Members(raw, func(key, value []byte) error {
		switch string(key) {
		case "id":
			m.id = unlessNull(value)
		case "method":
			m.method = unlessNull(value)
		case "params":
			m.params = value
		case "result":
			m.result = value
		case "error":
			m.err = unlessNull(value)
		}
		return nil
	})
	return m, err
}

func unlessNull(value []byte) []byte {
	if string(value) == "null" {
		return nil
	}
	return value
}

// number returns the id of a device's answer, and false if it is not a whole
// number. cJSON may print 7 as 7.0.
func (m message) number() (int64, bool) {
	if n, err := strconv.ParseInt(string(m.id), 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(string(m.id), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

// failure returns the error in m, nil if m carries a result.
func (m message) failure() error {
	switch {
	case m.err != nil:
		return parseError(m.err)
	case m.result == nil:
		return fmt.Errorf("%w: neither result nor error", ErrMalformed)
	case m.result[0] != '{':
		return fmt.Errorf("%w: result is %w", ErrMalformed, jsonscan.ErrNotObject)
	}
	return nil
}

// parseError reads an error in any form that a device may use: stock firmware
// sends an object with only a message; other firmware adds a code or sends a
// string.
func parseError(value []byte) *Error {
	e := &Error{Code: CodeUnspecified, Message: cleanAny(value)}
	_ = jsonscan.Members(value, func(key, value []byte) error {
		switch string(key) {
		case "message":
			e.Message = cleanAny(value)
		case "code":
			if n, err := strconv.ParseInt(string(value), 10, 32); err == nil {
				e.Code, e.HasCode = int(n), true
			}
		case "data":
			e.Supported = supported(value)
		}
		return nil
	}) // not an object: the whole value is the message
	return e
}

// supported returns the first revision of MCP in the data of an error, {"supported": [...]}.
func supported(data []byte) string {
	var d struct{ Supported []string }
	if len(data) > 1024 || json.Unmarshal(data, &d) != nil {
		return ""
	}
	for _, revision := range d.Supported {
		if _, err := time.Parse(time.DateOnly, revision); err == nil {
			return revision
		}
	}
	return ""
}

// cleanAny returns a string's text, or the JSON of any other value.
func cleanAny(value []byte) string {
	if !jsonscan.IsString(value) {
		return cleanBody(value)
	}
	return cleanText(value, maxErrorText)
}

// cleanBody cleans text that is not a string literal, backslashes and all.
func cleanBody(text []byte) string {
	text = text[:min(len(text), maxErrorText)]
	escaped := bytes.ReplaceAll(text, []byte{'\\'}, []byte(`\\`))
	return clean(escaped, maxErrorText, keepInText)
}
