// Package password estimates how easily a password can be guessed.
//
// It splits the password as a guesser would: into common words, runs of the keyboard or the
// alphabet, years, repetitions, the name of the owner, and single characters. Each part adds
// bits, and the cheapest split counts. The package does not hash and has no rule about
// length.
package password

import (
	_ "embed"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// A Weakness is the reason why a password is easy to guess.
type Weakness string

const (
	None    Weakness = ""
	Name    Weakness = "name"    // the owner's name is in it
	Common  Weakness = "common"  // made of common words
	Pattern Weakness = "pattern" // repeats, sequences, or too few kinds of characters
)

// leastBits is the minimum strength of a password. Guessing 38 bits through the sign-in takes
// longer than any password is in use. Against a stolen hash, at some 20 ms of argon2id each,
// trying all of them takes one processor some centuries.
const leastBits = 38

// judged is the maximum number of characters that are examined; further ones only make
// guessing harder.
const judged = 64

// longestPiece is the maximum length of one part.
const longestPiece = 24

// shortestName is the minimum length of a name that a password must not contain. Shorter
// names occur in too many words; they count as guessed parts.
const shortestName = 4

//go:embed words.txt
var wordList string

var words, longestWord = readWords()

func readWords() (map[string]bool, int) {
	all, longest := make(map[string]bool), 0
	for _, w := range strings.Fields(wordList) {
		all[w] = true
		longest = max(longest, len(w))
	}
	return all, longest
}

// keyboard lists rows and columns of keyboards, parts of which people type.
var keyboard = []string{"qwertyuiop", "asdfghjkl", "zxcvbnm", "qwertzuiop", "yxcvbnm", "azertyuiop", "qsdfghjklm",
	"wxcvbn", "1234567890", "1qaz2wsx3edc4rfv5tgb6yhn7ujm", "!@#$%^&*()", "147258369", "789456123"}

// plain replaces the characters that people write instead of letters.
var plain = strings.NewReplacer("0", "o", "1", "i", "3", "e", "4", "a", "5", "s", "7", "t", "8", "b", "@", "a",
	"$", "s", "!", "i", "|", "l", "+", "t", "(", "c")

// Judge returns why the password is weak, or [None]. names are the names of its owner.
func Judge(password string, names ...string) Weakness {
	text := []rune(strings.ToLower(password))
	if len(text) > judged {
		text = text[:judged]
	}
	own := make(map[string]bool)
	for _, name := range names {
		name = strings.ToLower(strings.TrimSpace(name))
		if len([]rune(name)) >= shortestName && strings.Contains(string(text), name) {
			return Name
		}
		for part := range strings.FieldsFuncSeq(name, betweenWords) {
			own[part] = true
		}
	}
	bits, why := read(text, own)
	// Upper case costs a guesser only a few more tries.
	if password != strings.ToLower(password) {
		bits += 2
	}
	if bits >= leastBits {
		return None
	}
	return why
}

func betweenWords(c rune) bool { return !unicode.IsLetter(c) && !unicode.IsNumber(c) }

// A reading is the cheapest split of the beginning of a password.
type reading struct {
	bits        float64
	named, word bool // the split uses the owner's name, or a common word
}

func read(text []rune, own map[string]bool) (float64, Weakness) {
	best := make([]reading, len(text)+1)
	for end := 1; end <= len(text); end++ {
		best[end] = best[end-1]
		best[end].bits += single(text[end-1])
		for start := end - 2; start >= max(0, end-longestPiece); start-- {
			r := best[start]
			bits, named, word := piece(text, start, end, own)
			r.bits, r.named, r.word = r.bits+bits, r.named || named, r.word || word
			if r.bits < best[end].bits {
				best[end] = r
			}
		}
	}
	switch r := best[len(text)]; {
	case r.named:
		return r.bits, Name
	case r.word:
		return r.bits, Common
	default:
		return r.bits, Pattern
	}
}

// single returns the bits that one character adds.
func single(c rune) float64 {
	switch {
	case c >= '0' && c <= '9':
		return math.Log2(10)
	case c >= 'a' && c <= 'z':
		return math.Log2(26)
	case c == ' ' || c == '-' || c == '_' || c == '.':
		return 3
	case c <= unicode.MaxASCII:
		return math.Log2(33)
	default:
		return 10 // there are thousands, but the common ones are guessed first
	}
}

// piece returns the bits that a part of two or more characters adds; infinity if the part has
// no pattern.
func piece(text []rune, start, end int, own map[string]bool) (bits float64, named, word bool) {
	part := string(text[start:end])
	switch n := end - start; {
	case own[part] || own[plain.Replace(part)]:
		return 1, true, false
	case n <= longestWord && words[part]:
		return 9, false, true
	case n <= longestWord && words[plain.Replace(part)]:
		return 11, false, true
	case repeats(text[start:end]):
		return single(text[start]) + math.Log2(float64(n)), false, false
	case n >= 2 && n <= start && strings.Contains(string(text[:start]), part):
		return 2 + math.Log2(float64(n)), false, false
	case n >= 3 && (sequence(text[start:end]) || onKeyboard(part)):
		return 4 + math.Log2(float64(n)), false, false
	case n == 4 && year(part):
		return 6, false, false
	}
	return math.Inf(1), false, false
}

// repeats reports whether part repeats one character.
func repeats(part []rune) bool {
	for _, c := range part {
		if c != part[0] {
			return false
		}
	}
	return true
}

// sequence reports whether each character follows the one before it in the alphabet, or each
// precedes it.
func sequence(part []rune) bool {
	step := part[1] - part[0]
	if step != 1 && step != -1 {
		return false
	}
	for i := 1; i < len(part); i++ {
		if part[i]-part[i-1] != step {
			return false
		}
	}
	return true
}

func onKeyboard(part string) bool {
	back := []rune(part)
	for i, j := 0, len(back)-1; i < j; i, j = i+1, j-1 {
		back[i], back[j] = back[j], back[i]
	}
	for _, row := range keyboard {
		if strings.Contains(row, part) || strings.Contains(row, string(back)) {
			return true
		}
	}
	return false
}

func year(part string) bool {
	n, err := strconv.Atoi(part)
	return err == nil && n >= 1940 && n < 2060
}
