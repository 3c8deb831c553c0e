/* The Gemma 3 turn format (spec models.md §11.3) for checkpoints that ship no template: a BOS, the system
 * text in front of the first user turn, roles that alternate, assistant turns under the name "model", trimmed
 * contents. Written from the published format; the wording of the refusal is the one that clients of Hugging
 * Face know.
 */
#include "chat/internal.h"

const char bl_chat_template_gemma3[] =
    "{{- bos_token }}\n"
    "{%- macro text(content) %}\n"
    "    {%- if content is string %}\n"
    "        {{- content | trim }}\n"
    "    {%- else %}\n"
    "        {%- for part in content or [] %}\n"
    "            {{- part.text | trim }}\n"
    "        {%- endfor %}\n"
    "    {%- endif %}\n"
    "{%- endmacro %}\n"
    "{%- set turns = messages %}\n"
    "{%- set lead = '' %}\n"
    "{%- if messages and messages[0].role in ['system', 'developer'] %}\n"
    "    {%- set first = messages[0].content %}\n"
    "    {%- set lead = (first if first is string else first | map(attribute='text') | join) ~ '\\n\\n' %}\n"
    "    {%- set turns = messages[1:] %}\n"
    "{%- endif %}\n"
    "{%- for turn in turns %}\n"
    "    {%- if (turn.role == 'user') != (loop.index0 % 2 == 0) %}\n"
    "        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}\n"
    "    {%- endif %}\n"
    "    {{- '<start_of_turn>' ~ ('model' if turn.role == 'assistant' else turn.role) ~ '\\n' }}\n"
    "    {{- lead if loop.first }}\n"
    "    {{- text(turn.content) ~ '<end_of_turn>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<start_of_turn>model\\n' }}\n"
    "{%- endif %}\n";
