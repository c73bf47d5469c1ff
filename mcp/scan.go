package mcp

import (
	"errors"
	"fmt"
)

// maxDepth bounds the nesting of what a device sends. Stock answers need 9
// levels, envelope and schemas included.
const maxDepth = 32

var (
	errDepth     = errors.New("nested too deep")
	errNotObject = errors.New("not an object")
	errNotArray  = errors.New("not an array")
)

// A scanner walks JSON text once, checking its grammar and bounding its depth,
// without decoding or allocating. encoding/json would decode each message twice
// (envelope, then payload) and match keys in any case, which the answer path
// can afford in neither time nor strictness.
type scanner struct {
	data []byte
	pos  int
}

// eachMember calls f with the key (still escaped, without quotes) and the text
// of each member of the object in data. Both are parts of data. It reports
// errors of the whole text, so f may have seen members of a broken object.
func eachMember(data []byte, f func(key, value []byte) error) error {
	s := scanner{data: data}
	if s.peek() != '{' {
		return errNotObject
	}
	if err := s.object(maxDepth, f); err != nil {
		return err
	}
	return s.end()
}

// eachElement calls f with the text of each element of the array in data.
func eachElement(data []byte, f func(value []byte) error) error {
	s := scanner{data: data}
	if s.peek() != '[' {
		return errNotArray
	}
	if err := s.array(maxDepth, f); err != nil {
		return err
	}
	return s.end()
}

// checkJSON reports whether data is one JSON value nested at most depth levels.
func checkJSON(data []byte, depth int) error {
	s := scanner{data: data}
	s.peek()
	if err := s.value(depth); err != nil {
		return err
	}
	return s.end()
}

// peek skips white space and returns the byte behind it, 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) end() error {
	if s.peek(); s.pos < len(s.data) {
		return s.unexpected()
	}
	return nil
}

func (s *scanner) unexpected() error {
	if s.pos >= len(s.data) {
		return errors.New("unexpected end of JSON")
	}
	return fmt.Errorf("unexpected byte 0x%02x at offset %d of JSON", s.data[s.pos], s.pos)
}

func (s *scanner) value(depth int) error {
	if s.pos >= len(s.data) {
		return s.unexpected()
	}
	switch s.data[s.pos] {
	case '{':
		return s.object(depth, nil)
	case '[':
		return s.array(depth, nil)
	case '"':
		return s.string()
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	}
	return s.number()
}

func (s *scanner) object(depth int, f func(key, value []byte) error) error {
	if depth == 0 {
		return errDepth
	}
	s.pos++
	if s.peek() == '}' {
		s.pos++
		return nil
	}
	for {
		if err := s.member(depth, f); err != nil {
			return err
		}
		if more, err := s.more('}'); !more {
			return err
		}
	}
}

func (s *scanner) member(depth int, f func(key, value []byte) error) error {
	keyStart := s.pos + 1
	if err := s.string(); err != nil {
		return err
	}
	key := s.data[keyStart : s.pos-1]
	if s.peek() != ':' {
		return s.unexpected()
	}
	s.pos++
	s.peek()
	start := s.pos
	if err := s.value(depth - 1); err != nil || f == nil {
		return err
	}
	return f(key, s.data[start:s.pos])
}

func (s *scanner) array(depth int, f func(value []byte) error) error {
	if depth == 0 {
		return errDepth
	}
	s.pos++
	if s.peek() == ']' {
		s.pos++
		return nil
	}
	for {
		start := s.pos
		if err := s.value(depth - 1); err != nil {
			return err
		}
		if f != nil {
			if err := f(s.data[start:s.pos]); err != nil {
				return err
			}
		}
		if more, err := s.more(']'); !more {
			return err
		}
	}
}

// more steps over a comma, then returns true, or over the closing byte.
func (s *scanner) more(closing byte) (bool, error) {
	switch s.peek() {
	case ',':
		s.pos++
		s.peek()
		return true, nil
	case closing:
		s.pos++
		return false, nil
	}
	return false, s.unexpected()
}

func (s *scanner) literal(name string) error {
	for i := range len(name) {
		if s.pos >= len(s.data) || s.data[s.pos] != name[i] {
			return s.unexpected()
		}
		s.pos++
	}
	return nil
}
