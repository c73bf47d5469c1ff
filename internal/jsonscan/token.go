package jsonscan

// Unescaped marks the bytes that a string may contain unescaped.
var Unescaped = func() (t [256]bool) {
	for c := 0x20; c < 256; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// StringLit steps over a string literal. It does not check UTF-8: devices cut
// text in the middle of a character, and such an answer must still be readable.
func (s *Scanner) StringLit() error {
	if s.Pos >= len(s.Data) || s.Data[s.Pos] != '"' {
		return s.unexpected()
	}
	s.Pos++
	for {
		for s.Pos < len(s.Data) && Unescaped[s.Data[s.Pos]] {
			s.Pos++
		}
		if s.Pos >= len(s.Data) {
			return s.unexpected()
		}
		switch s.Data[s.Pos] {
		case '"':
			s.Pos++
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

func (s *Scanner) escape() error {
	s.Pos++
	if s.Pos >= len(s.Data) {
		return s.unexpected()
	}
	switch s.Data[s.Pos] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.Pos++
		return nil
	case 'u':
		s.Pos++
		for range 4 {
			if s.Pos >= len(s.Data) || !isHex(s.Data[s.Pos]) {
				return s.unexpected()
			}
			s.Pos++
		}
		return nil
	}
	return s.unexpected()
}

// Number steps over a number.
func (s *Scanner) Number() error {
	if s.at('-') {
		s.Pos++
	}
	if s.at('0') {
		s.Pos++
	} else if err := s.digits(); err != nil {
		return err
	}
	if s.at('.') {
		s.Pos++
		if err := s.digits(); err != nil {
			return err
		}
	}
	if !s.at('e') && !s.at('E') {
		return nil
	}
	s.Pos++
	if s.at('+') || s.at('-') {
		s.Pos++
	}
	return s.digits()
}

func (s *Scanner) at(c byte) bool { return s.Pos < len(s.Data) && s.Data[s.Pos] == c }

func (s *Scanner) digits() error {
	start := s.Pos
	for s.Pos < len(s.Data) && '0' <= s.Data[s.Pos] && s.Data[s.Pos] <= '9' {
		s.Pos++
	}
	if s.Pos == start {
		return s.unexpected()
	}
	return nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}
