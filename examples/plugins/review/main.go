// Command review is a plug-in with two prompts: review_code and explain_change.
//
// It shows prompts, which people choose in their client, and which become messages
// to a language model. Clients call the completion handler while a person types an
// argument. The SDK does not check that required arguments are present, so the
// handlers do.
package main

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var (
	languages = []string{"Bash", "C", "C++", "Go", "Java", "JavaScript", "Python", "Rust", "SQL", "TypeScript"}
	focuses   = []string{"clarity", "concurrency", "correctness", "error handling", "performance", "security", "tests"}
)

func main() {
	server := mcp.NewServer(&mcp.Implementation{Name: "review", Version: "1.0.0"},
		&mcp.ServerOptions{CompletionHandler: complete})
	server.AddPrompt(&mcp.Prompt{
		Name: "review_code", Title: "Review code", Description: "Asks for a review of a piece of code.",
		Arguments: []*mcp.PromptArgument{
			{Name: "language", Description: "the language of the code", Required: true},
			{Name: "code", Description: "the code to review", Required: true},
			{Name: "focus", Description: "what matters most in this review"},
		},
	}, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		args := req.Params.Arguments
		text := fmt.Sprintf("Review the %s code in the next message. List the problems, the most serious "+
			"first, each with its line and a fix. If there are none, say so.", args["language"])
		if args["focus"] != "" {
			text += " Look at " + args["focus"] + " first."
		}
		return messages(args, []string{"language", "code"}, text, args["code"])
	})
	server.AddPrompt(&mcp.Prompt{
		Name: "explain_change", Title: "Explain a change", Description: "Asks what a diff changes, and why.",
		Arguments: []*mcp.PromptArgument{{Name: "diff", Description: "a diff, as git prints it", Required: true}},
	}, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		args := req.Params.Arguments
		return messages(args, []string{"diff"}, "Explain the change in the next message to a colleague: "+
			"what it does, its likely reason, and what it could break.", args["diff"])
	})
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}

// messages returns a prompt with one message per text. The code is a separate
// message, so nothing in it has to be quoted.
func messages(args map[string]string, required []string, texts ...string) (*mcp.GetPromptResult, error) {
	for _, name := range required {
		if args[name] == "" {
			return nil, invalidParams("missing argument %q", name)
		}
	}
	result := &mcp.GetPromptResult{}
	for _, text := range texts {
		result.Messages = append(result.Messages,
			&mcp.PromptMessage{Role: "user", Content: &mcp.TextContent{Text: text}})
	}
	return result, nil
}

// complete returns the values of an argument that begin with what was typed.
func complete(_ context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	var known []string
	switch ref, arg := req.Params.Ref, req.Params.Argument.Name; {
	case ref.Type != "ref/prompt" || ref.Name != "review_code" && ref.Name != "explain_change":
		return nil, invalidParams("unknown prompt %q", ref.Name)
	case ref.Name == "review_code" && arg == "language":
		known = languages
	case ref.Name == "review_code" && arg == "focus":
		known = focuses
		// The context has the arguments that the person has already filled in.
		if c := req.Params.Context; c != nil && (c.Arguments["language"] == "C" || c.Arguments["language"] == "C++") {
			known = append([]string{"memory safety"}, focuses...)
		}
	}
	values := []string{} // not nil, which would become null in JSON
	for _, v := range known {
		if strings.HasPrefix(strings.ToLower(v), strings.ToLower(req.Params.Argument.Value)) {
			values = append(values, v)
		}
	}
	return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: values, Total: len(values)}}, nil
}

func invalidParams(format string, args ...any) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf(format, args...)}
}
