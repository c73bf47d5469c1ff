package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// salvageHead is how far into an unreadable message its id is looked for; stock
// firmware writes it within the first 100 bytes.
const salvageHead = 1024

// salvageID finds the id of an answer that does not parse. It looks only before
// the error or result, whose text could hold anything.
func salvageID(raw []byte) (int64, bool) {
	head := raw[:min(len(raw), salvageHead)]
	for _, key := range []string{`"error"`, `"result"`} {
		head, _, _ = bytes.Cut(head, []byte(key))
	}
	_, rest, found := bytes.Cut(head, []byte(`"id"`))
	if !found {
		return 0, false
	}
	s := scanner{data: rest}
	if s.peek() != ':' {
		return 0, false
	}
	s.pos++
	s.peek()
	start := s.pos
	if s.number() != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(rest[start:s.pos]), 10, 32)
	return n, err == nil
}

// salvageError returns the error of an answer that does not parse. Stock
// firmware pastes an error's text unescaped between "message":" and the quote
// before the closing braces, so everything between the two is the text.
func salvageError(raw []byte) error {
	_, rest, isError := bytes.Cut(raw, []byte(`"error"`))
	_, text, hasText := bytes.Cut(rest, []byte(`"message":"`))
	switch {
	case !isError && errors.Is(checkJSON(raw, maxDepth), errDepth):
		return &LimitError{Limit: LimitLevels, Max: maxDepth}
	case !isError || !hasText:
		return fmt.Errorf("%w: not valid JSON", ErrMalformed)
	}
	if end := bytes.LastIndexByte(text, '"'); end >= 0 {
		text = text[:end]
	}
	return &Error{Code: CodeUnspecified, Message: cleanBody(text), Salvaged: true}
}
