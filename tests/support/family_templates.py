"""Small chat templates in the manner of Qwen2.5, Qwen3, Llama 3.1 and Mistral's third version.

Ours, and shorter; they lean on what those lean on: looking at the messages before and after, namespaces,
slices from both ends, tests for kinds of content, thoughts cut out of texts, JSON with and without indents,
refusals.
"""

_TOOL_LIST = r"""
{%- macro listed(found) %}
    {%- for one in found %}
        {{- "\n" }}{{- one | tojson }}
    {%- endfor %}
    {{- "\n</tools>\nUse <tool_call></tool_call>." }}
{%- endmacro %}
"""

# Results of neighbouring calls share one turn of the user.
_RESULT = r"""
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- "<|im_start|>user" }}{% endif %}
        {{- "\n<tool_response>\n" + message.content + "\n</tool_response>" }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- "<|im_end|>\n" }}{% endif %}
"""

QWEN25 = (
    _TOOL_LIST
    + r"""
{%- set first = messages[0]['content'] if messages[0]['role'] == 'system' else 'You help.' %}
{{- '<|im_start|>system\n' + first }}
{%- if tools %}{{- '\n\n# Tools\n<tools>' + listed(tools) }}{%- endif %}
{{- '<|im_end|>\n' }}
{%- for message in messages %}
    {%- if message.role == "tool" %}"""
    + _RESULT
    + r"""
    {%- elif message.role == "assistant" and message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\n' + message.content }}{% endif %}
        {%- for made in message.tool_calls %}
            {%- if made.function is defined %}{% set made = made.function %}{% endif %}
            {{- '\n<tool_call>\n{"name": "' + made.name + '", "arguments": ' }}
            {{- made.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role != "system" or not loop.first %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
)

QWEN3 = (
    _TOOL_LIST
    + r"""
{%- if tools or messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{% endif %}
    {%- if tools %}{{- '\n\n# Tools\n<tools>' + listed(tools) }}{% endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{#- Thoughts before the last question are left out: find it from the end. #}
{%- set found = namespace(searching=true, question=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if found.searching and message.role == "user" and message.content is string
           and not message.content.startswith('<tool_response>') %}
        {%- set found.searching = false %}
        {%- set found.question = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set said = message.content if message.content is string else '' %}
    {%- if message.role == "tool" %}"""
    + _RESULT
    + r"""
    {%- elif message.role == "assistant" %}
        {%- set thoughts = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thoughts = message.reasoning_content %}
        {%- elif '</think>' in said %}
            {%- set thoughts = said.split('</think>')[0].split('<think>')[-1] %}
            {%- set said = said.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > found.question and (loop.last or thoughts) %}
            {{- '<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- said }}
        {%- for made in message.tool_calls or [] %}
            {%- if said or not loop.first %}{{- '\n' }}{% endif %}
            {%- set made = made.function or made %}
            {{- '<tool_call>\n{"name": "' + made.name + '", "arguments": ' }}
            {{- made.arguments if made.arguments is string else made.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role != "system" or not loop.first %}
        {{- '<|im_start|>' + message.role + '\n' + said + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
)

LLAMA31 = r"""
{%- macro opened(role) %}{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}{% endmacro %}
{{- bos_token }}
{%- if not tools is defined %}{% set tools = none %}{% endif %}
{%- if not among_users is defined %}{% set among_users = true %}{% endif %}
{%- set today = strftime_now("%d %b %Y") if strftime_now is defined else "?" %}
{%- set system = "" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- opened('system') }}
{%- if tools is not none or builtins is defined %}{{- "Environment: ipython\n" }}{% endif %}
{{- "Today: " + today + "\n\n" + system + "<|eot_id|>" }}
{%- if among_users and not tools is none %}
    {{- opened('user') + 'Answer {"name": name, "parameters": values}.\n\n' }}
    {%- for one in tools %}
        {{- one | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- messages[0]['content'] | trim + "<|eot_id|>" }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception("One call at a time.") }}{% endif %}
        {%- set made = message.tool_calls[0].function %}
        {{- opened('assistant') + '{"name": "' + made.name + '", "parameters": ' }}
        {{- made.arguments | tojson }}
        {{- "}" + ("<|eom_id|>" if builtins is defined else "<|eot_id|>") }}
        {%- for key, value in made.arguments | items %}{{- "" if value else "" }}{% endfor %}
    {%- elif message.role in ('tool', 'ipython') %}
        {{- opened('ipython') }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- opened(message['role']) + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- opened('assistant') }}{% endif %}
"""

MISTRAL3 = r"""
{%- macro checked(id) %}
    {%- if id is not defined or id | length != 9 %}{{- raise_exception("Ids have 9 letters.") }}{% endif %}
    {{- '"' + id + '"}' }}
{%- endmacro %}
{%- set turns = messages[1:] if messages[0]["role"] == "system" else messages %}
{%- set asked = turns | selectattr("role", "equalto", "user") | list %}
{%- set count = namespace(said=0) %}
{%- for message in turns if not (message.role == "tool" or message.tool_calls is defined) %}
    {%- if (message["role"] == "user") != (count.said % 2 == 0) %}
        {{- raise_exception("User and assistant take turns.") }}
    {%- endif %}
    {%- set count.said = count.said + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in turns %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and message == asked[-1] %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for one in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, value in one.function.items() if key != "return" %}
                    {{- '"' + key + '": ' + ('"' + value + '"' if value is string else value | tojson) }}
                    {{- ", " if not loop.last }}
                {%- endfor %}
                {{- "}}" + ("]" if loop.last else ", ") }}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " }}
        {{- messages[0]["content"] + "\n\n" if loop.last and messages[0]["role"] == "system" }}
        {{- message["content"] + "[/INST]" }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for made in message.tool_calls %}
            {%- set text = made.function | tojson %}
            {{- text[:-1] + ', "id": ' + checked(made.id) + ("]" + eos_token if loop.last else ", ") }}
        {%- endfor %}
    {%- elif message["role"] == "tool" %}
        {%- set told = message.content.content if message.content.content is defined else message.content %}
        {{- '[TOOL_RESULTS] {"content": ' + told | string + ', "call_id": ' }}
        {{- checked(message.tool_call_id) + "[/TOOL_RESULTS]" }}
    {%- else %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

FAMILIES = {"qwen2.5": QWEN25, "qwen3": QWEN3, "llama3.1": LLAMA31, "mistral3": MISTRAL3}
