package campaign

import (
	"errors"
	"regexp"
	"regexp/syntax"
)

// maxPatternSteps bounds the compiled form of a pattern. Nested repetitions multiply: a
// pattern of 1,000 bytes can compile to 300,000 steps, and matching may try all of them
// at every byte of an answer.
const maxPatternSteps = 2000

var errLargePattern = errors.New("the pattern repeats too much")

// compilePattern compiles the pattern of an assertion.
func compilePattern(pattern string) (*regexp.Regexp, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	if len(program.Inst) > maxPatternSteps {
		return nil, errLargePattern
	}
	return regexp.Compile(pattern)
}
