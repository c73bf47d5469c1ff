package campaign

import (
	"errors"
	"regexp"
	"regexp/syntax"
)

// maxPatternSteps bounds the compiled form of a pattern. Repetitions multiply: 1,000
// bytes can make 300,000 steps, each of which is taken for each byte of an answer.
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
