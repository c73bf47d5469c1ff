package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"fleetd/internal/jsonscan"
)

const (
	// maxArgumentDepth limits a whole request to 7 levels, three of which are
	// envelope, payload and params: the firmware parses it recursively on a
	// stack of 4 KB.
	maxArgumentDepth = 4

	// maxNumber is the longest number, in characters, that the firmware's JSON
	// parser accepts.
	maxNumber = 63
)

// checkName refuses a tool name that a stock device would copy into an error
// text, which would then be invalid JSON.
func checkName(name string) error {
	if name == "" {
		return fmt.Errorf("%w: the tool name is empty", ErrInvalid)
	}
	if len(name) > maxToolName {
		return fmt.Errorf("%w: the tool name has %d bytes, at most %d are allowed", ErrInvalid, len(name), maxToolName)
	}
	if err := checkEchoed("the tool name", name); err != nil {
		return fmt.Errorf("%w (tool %q)", err, name)
	}
	return nil
}

// checkNameLiteral is checkName for a name in a device's list of tools.
func checkNameLiteral(lit []byte) error {
	var name string
	if err := json.Unmarshal(lit, &name); err != nil {
		return err
	}
	return checkName(name)
}

// checkEchoed refuses text that breaks the firmware's unescaped error messages.
// The error does not repeat the text, which may contain a one-time token.
func checkEchoed(what, text string) error {
	for _, r := range text {
		if r == '"' || r == '\\' || r == utf8.RuneError || !keepInLine(r) {
			return fmt.Errorf("%w: %s holds %q, which would make a stock device's error message unreadable: "+
				"quotes, backslashes, control characters and broken UTF-8 are refused", ErrInvalid, what, r)
		}
	}
	return nil
}

// checkArguments returns the arguments to send, {} for none, or an error for
// arguments that a stock device would drop silently or answer unreadably.
func checkArguments(arguments json.RawMessage) (json.RawMessage, error) {
	arguments = bytes.TrimSpace(arguments)
	if len(arguments) == 0 || unlessNull(arguments) == nil {
		return json.RawMessage("{}"), nil
	}
	if arguments[0] != '{' {
		return nil, fmt.Errorf("%w: arguments are %w", ErrInvalid, jsonscan.ErrNotObject)
	}
	if err := jsonscan.Check(arguments, maxArgumentDepth); err != nil {
		return nil, fmt.Errorf("%w: arguments (at most %d levels): %w", ErrInvalid, maxArgumentDepth, err)
	}
	if err := checkTokens(arguments); err != nil {
		return nil, err
	}
	return arguments, jsonscan.Members(arguments, checkURL)
}

// checkTokens refuses strings and numbers that the firmware's parser rejects:
// it would drop the whole request without an answer.
func checkTokens(arguments []byte) error {
	s := jsonscan.Scanner{Data: arguments}
	for c := s.Peek(); s.Pos < len(arguments); c = s.Peek() {
		start := s.Pos
		switch {
		case c == '"':
			_ = s.StringLit() // checked before
			if err := checkString(arguments[start+1 : s.Pos-1]); err != nil {
				return err
			}
		case c == '-' || '0' <= c && c <= '9':
			_ = s.Number() // checked before
			if s.Pos-start > maxNumber {
				return fmt.Errorf("%w: an argument is a number of %d characters", ErrInvalid, s.Pos-start)
			}
		default:
			s.Pos++
		}
	}
	return nil
}

func checkString(body []byte) error {
	for len(body) > 0 {
		r, n, ok := nextRune(body)
		if !ok || r == 0 {
			return fmt.Errorf("%w: an argument holds U+0000 or is not valid UTF-8", ErrInvalid)
		}
		body = body[n:]
	}
	return nil
}

// checkURL refuses a URL that the firmware could not name in an error. An
// argument counts as a URL by its name or by its value.
func checkURL(key, value []byte) error {
	if !jsonscan.IsString(value) {
		return nil
	}
	text := clean(value[1:len(value)-1], unlimited, func(rune) bool { return true })
	lower := strings.ToLower(text)
	if !strings.HasSuffix(strings.ToLower(string(key)), "url") &&
		!strings.HasPrefix(lower, "http://") && !strings.HasPrefix(lower, "https://") {
		return nil
	}
	return checkEchoed("the URL in argument "+cleanBody(key), text)
}
