// Package jsonscan scans JSON text once, without decoding it: it checks the grammar,
// bounds the nesting, and returns the parts of objects and arrays unchanged.
//
// It serves the text that is read for each call: messages of devices, and the short
// bodies of REST and MCP. There encoding/json would take longer than the rest of the
// work, and it matches keys in any case. The package decodes nothing, defines no
// messages, and holds no state. It accepts exactly the texts that [encoding/json.Valid]
// accepts, up to MaxDepth; a fuzz test compares the two.
package jsonscan

import (
	"errors"
	"fmt"
)

// MaxDepth bounds the nesting of objects and arrays. The answers of stock firmware
// need 9 levels, envelope and schemas included.
const MaxDepth = 32

var (
	ErrDepth     = errors.New("nested too deep")
	ErrNotObject = errors.New("not an object")
	ErrNotArray  = errors.New("not an array")
)

// A Scanner steps over the tokens of a JSON text. Its methods allocate nothing.
type Scanner struct {
	Data []byte
	Pos  int // index of the next byte
}

// Members calls f with the key (still escaped, without quotes) and the text of each
// member of the object in data. Both alias data. Members also reports errors after the
// last member, so f may have been called for members of a broken object.
func Members(data []byte, f func(key, value []byte) error) error {
	s := Scanner{Data: data}
	if s.Peek() != '{' {
		return ErrNotObject
	}
	if err := s.object(MaxDepth, f); err != nil {
		return err
	}
	return s.end()
}

// Elements calls f with the text of each element of the array in data.
func Elements(data []byte, f func(value []byte) error) error {
	s := Scanner{Data: data}
	if s.Peek() != '[' {
		return ErrNotArray
	}
	if err := s.array(MaxDepth, f); err != nil {
		return err
	}
	return s.end()
}

// Check reports whether data is one JSON value nested at most depth levels.
func Check(data []byte, depth int) error {
	s := Scanner{Data: data}
	s.Peek()
	if err := s.value(depth); err != nil {
		return err
	}
	return s.end()
}

// Peek skips white space and returns the byte after it, 0 at the end.
func (s *Scanner) Peek() byte {
	for s.Pos < len(s.Data) {
		switch c := s.Data[s.Pos]; c {
		case ' ', '\t', '\n', '\r':
			s.Pos++
		default:
			return c
		}
	}
	return 0
}

func (s *Scanner) end() error {
	if s.Peek(); s.Pos < len(s.Data) {
		return s.unexpected()
	}
	return nil
}

func (s *Scanner) unexpected() error {
	if s.Pos >= len(s.Data) {
		return errors.New("unexpected end of JSON")
	}
	return fmt.Errorf("unexpected byte 0x%02x at offset %d of JSON", s.Data[s.Pos], s.Pos)
}

func (s *Scanner) value(depth int) error {
	if s.Pos >= len(s.Data) {
		return s.unexpected()
	}
	switch s.Data[s.Pos] {
	case '{':
		return s.object(depth, nil)
	case '[':
		return s.array(depth, nil)
	case '"':
		return s.StringLit()
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	}
	return s.Number()
}

func (s *Scanner) object(depth int, f func(key, value []byte) error) error {
	if depth == 0 {
		return ErrDepth
	}
	s.Pos++
	if s.Peek() == '}' {
		s.Pos++
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

func (s *Scanner) member(depth int, f func(key, value []byte) error) error {
	keyStart := s.Pos + 1
	if err := s.StringLit(); err != nil {
		return err
	}
	key := s.Data[keyStart : s.Pos-1]
	if s.Peek() != ':' {
		return s.unexpected()
	}
	s.Pos++
	s.Peek()
	start := s.Pos
	if err := s.value(depth - 1); err != nil || f == nil {
		return err
	}
	return f(key, s.Data[start:s.Pos])
}

func (s *Scanner) array(depth int, f func(value []byte) error) error {
	if depth == 0 {
		return ErrDepth
	}
	s.Pos++
	if s.Peek() == ']' {
		s.Pos++
		return nil
	}
	for {
		start := s.Pos
		if err := s.value(depth - 1); err != nil {
			return err
		}
		if f != nil {
			if err := f(s.Data[start:s.Pos]); err != nil {
				return err
			}
		}
		if more, err := s.more(']'); !more {
			return err
		}
	}
}

// more steps over a comma and returns true, or steps over the closing byte and returns
// false.
func (s *Scanner) more(closing byte) (bool, error) {
	switch s.Peek() {
	case ',':
		s.Pos++
		s.Peek()
		return true, nil
	case closing:
		s.Pos++
		return false, nil
	}
	return false, s.unexpected()
}

func (s *Scanner) literal(name string) error {
	for i := range len(name) {
		if s.Pos >= len(s.Data) || s.Data[s.Pos] != name[i] {
			return s.unexpected()
		}
		s.Pos++
	}
	return nil
}
