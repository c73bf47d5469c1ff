package mcp

// plain marks the bytes that a string may hold unescaped.
var plain = func() (t [256]bool) {
	for c := 0x20; c < 256; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// string steps over a string literal. It does not look at UTF-8: devices cut
// text in the middle of a character, and that must not cost the answer.
func (s *scanner) string() error {
	if s.pos >= len(s.data) || s.data[s.pos] != '"' {
		return s.unexpected()
	}
	s.pos++
	for {
		for s.pos < len(s.data) && plain[s.data[s.pos]] {
			s.pos++
		}
		if s.pos >= len(s.data) {
			return s.unexpected()
		}
		switch s.data[s.pos] {
		case '"':
			s.pos++
			return nil
		case '\\':
			if err := s.escape(); err != nil {
				return err
			}
		default:
			return s.unexpected()
		}
	}
}

func (s *scanner) escape() error {
	s.pos++
	if s.pos >= len(s.data) {
		return s.unexpected()
	}
	switch s.data[s.pos] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos++
		return nil
	case 'u':
		s.pos++
		for range 4 {
			if s.pos >= len(s.data) || !isHex(s.data[s.pos]) {
				return s.unexpected()
			}
			s.pos++
		}
		return nil
	}
	return s.unexpected()
}

func (s *scanner) number() error {
	if s.at('-') {
		s.pos++
	}
	if s.at('0') {
		s.pos++
	} else if err := s.digits(); err != nil {
		return err
	}
	if s.at('.') {
		s.pos++
		if err := s.digits(); err != nil {
			return err
		}
	}
	if !s.at('e') && !s.at('E') {
		return nil
	}
	s.pos++
	if s.at('+') || s.at('-') {
		s.pos++
	}
	return s.digits()
}

func (s *scanner) at(c byte) bool { return s.pos < len(s.data) && s.data[s.pos] == c }

func (s *scanner) digits() error {
	start := s.pos
	for s.pos < len(s.data) && '0' <= s.data[s.pos] && s.data[s.pos] <= '9' {
		s.pos++
	}
	if s.pos == start {
		return s.unexpected()
	}
	return nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}
