package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"fleetd/internal/jsonscan"
)

// salvageHead is how many bytes of an unreadable message are searched for its
// id; stock firmware writes the id within the first 100 bytes.
const salvageHead = 1024

// salvageID finds the id of an answer that does not parse. It searches only the
// text before the error or result, which could contain anything.
func salvageID(raw []byte) (int64, bool) {
	head := raw[:min(len(raw), salvageHead)]
	for _, key := range []string{`"error"`, `"result"`} {
		head, _, _ = bytes.Cut(head, []byte(key))
	}
	_, rest, found := bytes.Cut(head, []byte(`"id"`))
	if !found {
		return 0, false
	}
	s := jsonscan.Scanner{Data: rest}
	if s.Peek() != ':' {
		return 0, false
	}
	s.Pos++
	s.Peek()
	start := s.Pos
	if s.Number() != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(rest[start:s.Pos]), 10, 32)
	return n, err == nil
}

// salvageError returns the error of an answer that does not parse. Stock
// firmware pastes an error's text unescaped between "message":" and the quote
// before the closing braces, so everything between the two is the text.
func salvageError(raw []byte) error {
	_, rest, isError := bytes.Cut(raw, []byte(`"error"`))
	_, text, hasText := bytes.Cut(rest, []byte(`"message":"`))
	switch {
	case !isError && errors.Is(jsonscan.Check(raw, jsonscan.MaxDepth), jsonscan.ErrDepth):
		return &LimitError{Limit: LimitLevels, Max: jsonscan.MaxDepth}
	case !isError || !hasText:
		return fmt.Errorf("%w: not valid JSON", ErrMalformed)
	}
	if end := bytes.LastIndexByte(text, '"'); end >= 0 {
		text = text[:end]
	}
	return &Error{Code: CodeUnspecified, Message: cleanBody(text), Salvaged: true}
}
